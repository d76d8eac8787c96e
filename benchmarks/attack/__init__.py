"""Parts of the attacks on files, on the server, and by kills, whose commands are in the folder above."""
