"""Run a course: give each student data of their own, and grade what strangers hand in."""
