"""Commands that entry points add to `hlorank`."""
