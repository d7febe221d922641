"""One module per family of mistakes; every function with @check in them is found by itself."""
