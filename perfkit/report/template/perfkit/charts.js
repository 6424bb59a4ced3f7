const lines = (text, size, width) =>
  (text.match(new RegExp(`.{1,${Math.max(Math.floor(width / size), 20)}}(\\s|$)`, "g")) ?? [text]).map((line) => line.trim());

const LEGENDS = ["color", "shape", "strokeDash"]; // channels that have one
const LIMITS = ["labelLimit", "minExtent", "maxExtent"];
const MARGIN = 20; // pixels right of a picture: half of its last label

// Gives the legend of a channel as many columns as its longest name leaves room for.
function legendFitted(channel, width) {
  if (!channel.scale?.domain || channel.legend === null) return;
  const longest = Math.max(...channel.scale.domain.map((name) => String(name).length));
  const columns = Math.min(channel.legend?.columns ?? 5, Math.floor(width / (40 + 7 * longest)));
  channel.legend = { ...channel.legend, columns: Math.max(1, columns), labelLimit: width - 40 };
}

// Breaks long titles, fits legends to the room that there is, and gives labels less of a narrow screen.
function fitted(spec, width, isWhole) {
  if (isWhole && typeof spec.title === "string") spec.title = { text: spec.title };
  for (const [part, size] of [["text", 8.4], ["subtitle", 6.4]]) {
    const text = isWhole ? spec.title?.[part] : null;
    if (text) spec.title[part] = [text].flat().flatMap((line) => lines(line, size, width));
  }
  for (const [name, value] of Object.entries(spec)) {
    if (name === "legend" && value?.columns) value.columns = Math.max(1, Math.min(value.columns, Math.floor(width / 170)));
    else if (LIMITS.includes(name) && width < 600) spec[name] = Math.min(value, (name === "labelLimit" ? 0.36 : 0.4) * width);
    else if (name !== "data" && name !== "datasets" && value && typeof value === "object") {
      if (LEGENDS.includes(name)) legendFitted(value, width);
      fitted(value, width, false);
    }
  }
}

// Gives panels below each other one width, and breaks their titles.
function panelled(panels, width) {
  for (const panel of panels) {
    panel.width = Math.max(width, 100);
    const text = [panel.title?.text].flat().join(" ");
    if (text) panel.title.text = lines(text, 6.4, width);
  }
}

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
  const spec = JSON.parse(figure.querySelector("script").textContent);
  const isSingle = typeof spec.width === "number"; // takes the width of the page, and follows it
  const whole = place.parentElement.clientWidth;
  const draw = () => vegaEmbed(place, spec, options);
  // What the labels at the left of a picture take; a long title or legend takes nothing of its width.
  const labels = () => {
    const svg = place.querySelector("svg");
    const seen = svg.getBoundingClientRect(); // smaller than it was drawn, where the page is narrow
    const left = svg.querySelector(".role-scope .background").getBoundingClientRect().left - seen.left;
    return (left * svg.getAttribute("width")) / seen.width;
  };
  const follow = ({ view }) => {
    const free = place.clientWidth - Number(place.querySelector("svg").getAttribute("width"));
    if (isSingle && view.width() + free > 100) view.width(view.width() + free).resize().runAsync();
    const width = spec.vconcat ? place.clientWidth - labels() - MARGIN : 0;
    if (!spec.vconcat || Math.abs(width - spec.vconcat[0].width) < 10) return;
    panelled(spec.vconcat, width);
    draw();
  };
  if (isSingle) spec.width = whole; // at first too wide, so that no title is the widest part
  fitted(spec, whole, true);
  panelled(spec.vconcat ?? [], whole);
  draw().then((drawn) => {
    follow(drawn);
    addEventListener("resize", () => follow(drawn));
  }).catch((error) => {
    place.textContent = `This chart could not be drawn: ${error.message}`;
    console.error(error);
  });
}
