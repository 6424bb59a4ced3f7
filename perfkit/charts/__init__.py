"""Pictures and tables for people: finished small frames in, Altair charts or HTML out; nothing is computed here."""
