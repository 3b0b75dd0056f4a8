"""The embedded checkpoint ``tiny`` and the script that makes it."""
