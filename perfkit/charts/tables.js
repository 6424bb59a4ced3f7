// Turns every table of perfkit.charts.searchable that is on the page into one that can be searched, sorted and paged.
window.perfkitSearchable = async () => {
  const ITable = await window.perfkitTables;
  for (const table of document.querySelectorAll(".perfkit-searchable:not([data-ready]) > table")) {
    const rows = Number(table.dataset.rows);
    const long = table.tBodies[0].rows.length > rows;
    table.parentElement.dataset.ready = "";
    const made = new ITable(table, {
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
    const all = made.table.constructor.fn.dataTable.settings; // also of tables that others have replaced since
    all.splice(0, all.length, ...all.filter(({ nTable }) => nTable.isConnected));
  }
};
window.perfkitSearchable();
// In a notebook, a click on a row that has a time, or a kernel's name, or on a finding, tells the view, which moves
// the explorer.
window.perfkitLeads ??= document.addEventListener("click", ({ target }) => {
  if (target.closest?.("a, button, summary")) return;
  const finding = target.closest?.("[data-leads]");
  const row = finding ?? target.closest?.(".perfkit-searchable tbody tr");
  const places = [row?.closest(".perfkit-leads"), row?.closest(".jp-Notebook")];
  const field = places.map((place) => place?.querySelector(".perfkit-leads-to input")).find(Boolean);
  if (!field || String(getSelection())) return;
  const heads = row.closest(".perfkit-searchable")?.querySelectorAll("th[data-column]") ?? [];
  const cells = [...heads].map((head, place) => [head.dataset.column, row.cells[place]?.dataset ?? {}]);
  const values = cells.map(([name, { order, search }]) => [name, order ?? search ?? ""]);
  const told = finding ? JSON.parse(finding.dataset.leads) : Object.fromEntries(values);
  field.value = JSON.stringify({ ...told, at: Date.now() });
  field.dispatchEvent(new Event("input", { bubbles: true }));
}) ?? true;
