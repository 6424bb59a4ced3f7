// Draws every chart of the page as SVG: its text takes the colour of the page, in dark mode and in print alike.
for (const figure of document.querySelectorAll("figure.chart")) {
  const place = figure.querySelector("div");
  const ink = "currentColor";
  const options = {
    ast: true, // evaluate expressions without Function(), which the page's policy forbids
    renderer: "svg",
    actions: { export: true, source: false, compiled: false, editor: false },
    config: {
      background: "transparent",
      title: { color: ink, subtitleColor: ink },
      style: { "guide-label": { fill: ink }, "guide-title": { fill: ink } },
      axis: { domainColor: ink, tickColor: ink, gridColor: "#808080" },
    },
  };
  vegaEmbed(place, JSON.parse(figure.querySelector("script").textContent), options).catch((error) => {
    place.textContent = `This chart could not be drawn: ${error.message}`;
    console.error(error);
  });
}
