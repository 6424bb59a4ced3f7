/* The overview: a chart whose brush over the field `start` is `edges`, which the page and Python set alike.
   `vegaEmbed` comes with the library before this program. A window that Python sets moves the brush of the chart that is
   there: to embed it again would take longer, and lose what a hand is drawing. */
const REST = 100;  // ms without a move after which a brush is told

const LESS = "perfkit-less";  // of a cell that stays at the top of the page while the rest is scrolled

/* A cell that has been scrolled to the top shows its overview alone until a pointer or the keyboard comes to it. The
   room of what is hidden stays, so that nothing below it jumps. Returns what ends this. */
function stays(cell) {
    if (!cell) return () => {};
    const watch = new IntersectionObserver(([seen]) => {
        const high = cell.offsetHeight;
        cell.classList.toggle(LESS, seen.boundingClientRect.top < (seen.rootBounds?.top ?? 0));
        cell.style.setProperty("--perfkit-less", `${Math.max(high - cell.offsetHeight, 0)}px`);
    // What is cut below does not count: one jump from there to the top would be no change.
    }, {root: cell.closest(".jp-WindowedPanel-outer"), rootMargin: "0px 0px 1000000px 0px", threshold: 1});
    watch.observe(cell);
    return () => watch.disconnect();
}

function render({model, el}) {
    let chart = null, wanted = 0, told = [], waiting = 0, embedding = Promise.resolve();

    const pixels = edges => edges.map(edge => chart.view.scale("x")(edge));
    const isNear = (one, other) => one.length === other.length &&
        pixels(one).every((at, i) => Math.abs(at - pixels(other)[i]) < 0.01);

    function show() {
        const edges = model.get("edges");
        if (!chart || isNear(edges, told)) return;
        clearTimeout(waiting);
        told = edges;
        chart.view.signal("brush_x", edges.length ? pixels(edges) : [0, 0]).runAsync();
    }

    function brushed(_, {start: edges = []}) {
        if (edges.some(edge => !Number.isFinite(edge))) return;  // a chart without width
        clearTimeout(waiting);
        waiting = setTimeout(() => {
            if (isNear(edges, told)) return;
            told = edges;
            model.set("edges", edges);
            model.save_changes();
        }, REST);
    }

    function embed() {
        const number = ++wanted;
        embedding = embedding.then(async () => {
            if (number !== wanted) return;
            clearTimeout(waiting);
            chart?.finalize();
            chart = null;
            const made = await vegaEmbed(el, structuredClone(model.get("spec")));
            if (number !== wanted) return made.finalize();
            [chart, told] = [made, []];
            if (!model.get("spec").params) return;  // nothing ran: there is nothing to brush
            chart.view.addSignalListener("brush", brushed);
            show();
        }).catch(error => { el.textContent = `The overview cannot be drawn: ${error.message}`; });
    }

    model.on("change:spec", embed);
    model.on("change:edges", show);
    embed();
    let leave = () => {};
    const placing = setTimeout(() => { leave = stays(el.closest(".perfkit-stays")?.closest(".jp-Cell")); });
    return () => { wanted += 1; clearTimeout(placing); clearTimeout(waiting); leave(); chart?.finalize(); };
}
export default {render};
