"""Images from measurements: whole jobs, from a file to a folder with the image, figures and a report."""
