// Turns every table of perfkit.charts.searchable that is on the page into one that can be searched, sorted and paged.
window.perfkitSearchable = async () => {
  const ITable = await window.perfkitTables;
  for (const table of document.querySelectorAll(".perfkit-searchable:not([data-ready]) > table")) {
    const rows = Number(table.dataset.rows);
    const long = table.tBodies[0].rows.length > rows;
    table.parentElement.dataset.ready = "";
    new ITable(table, {
      autoWidth: false,
      order: [],
      pageLength: rows,
      paging: long,
      layout: {
        topStart: long ? "search" : null,
        topEnd: null,
        bottomStart: long ? "info" : null,
        bottomEnd: long ? "paging" : null,
      },
      language: {
        emptyTable: "No rows",
        search: "",
        searchPlaceholder: "Search",
        info: "_START_ to _END_ of _TOTAL_ rows",
        infoEmpty: "No rows",
        infoFiltered: "(found in _MAX_)",
        zeroRecords: "No row contains this text.",
      },
    });
  }
};
window.perfkitSearchable();
