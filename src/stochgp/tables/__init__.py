"""Any frame, file or column of molecules to numbers, by rules that are values and are saved."""
