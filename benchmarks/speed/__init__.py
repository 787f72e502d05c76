"""Speed and memory of the app beside plain stand-ins, in one suite."""
