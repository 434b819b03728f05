"""Tables, curves, the HTML page and the README's numbers, all read from the files of the runs."""
