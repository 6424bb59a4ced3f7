"""Questions asked of the tables: tables in, tables or numbers out; nothing is drawn or read here."""
