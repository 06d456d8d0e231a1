"""One file a backend, all with the same signature: `rotate(x [..., N, D], cos [..., N, P], sin [..., N, P], layout)`.

They turn the first 2P channels of x, whose dtype is that of the tables, and pass the rest through.
"""
