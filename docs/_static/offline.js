// A page opened from a disk may not read its neighbours: there, search shows titles without extracts.
if (location.protocol === "file:" && typeof DOCUMENTATION_OPTIONS === "object")
  DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;
