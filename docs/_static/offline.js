// A page opened from a disk may not read its neighbours: there, search shows titles without extracts.
if (location.protocol === "file:" && window.DOCUMENTATION_OPTIONS) DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;
