"""Any text: files, tables, streams, encodings, URLs."""
