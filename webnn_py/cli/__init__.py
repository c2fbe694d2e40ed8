"""The command line, `webnn-py` or `python -m webnn_py`: one file a command."""
