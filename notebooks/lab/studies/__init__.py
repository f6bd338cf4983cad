"""Studies, and the commands of those who maintain their tables; imported file by file."""
