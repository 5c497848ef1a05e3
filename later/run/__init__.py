"""`later run`: the pull worker of an application as a program, of one process or of several."""
