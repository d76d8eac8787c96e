"""Commands that join `hlorank` through entry points."""
