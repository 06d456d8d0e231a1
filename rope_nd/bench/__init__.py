"""What turning, tables and whole models cost, beside copying and beside other libraries: `python -m rope_nd.bench`."""
