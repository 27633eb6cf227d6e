"""One module for each way in; `ENTRANCES` in `tests/fuzz/part.py` lists them."""
