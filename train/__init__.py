"""Training and evaluation of position encodings: train low, test high. Runs from a checkout; nothing imports it."""
