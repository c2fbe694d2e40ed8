"""The command line, `webnn-py` or `python -m webnn_py`: one module for each command."""
