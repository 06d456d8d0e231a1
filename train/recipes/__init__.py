"""Studies, one file each: the docstring is the claim, `STUDY` what is run."""
