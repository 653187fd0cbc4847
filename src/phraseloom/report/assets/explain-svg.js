/* The present view as one SVG picture: of each model the pair with its links, and the map with its labels. */
(() => {
  const { svg, percent, clip, colour, ink, textWidth } = Explain;
  const FONT = 'system-ui, "Segoe UI", "Noto Sans", "DejaVu Sans", sans-serif';
  const SHADES = 48;
  const [CELL, GAP, MARGIN, MOST] = [14, 8, 24, 900];
  const NOT_IN_XML = /[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]/g;

  const text = (x, y, words, more = {}) => svg("text", { x: round(x), y: round(y), ...more }, words);
  const round = (value) => Math.round(value * 10) / 10;

  /** Order the words of each line from the right, for a side that is written so. */
  function mirror(boxes) {
    for (const y of new Set(boxes.map((box) => box.y))) {
      const line = boxes.filter((box) => box.y === y);
      const end = line.at(-1).x + line.at(-1).width;
      for (const box of line) {
        box.x = end - box.x - box.width;
        box.middle = end - box.middle;
      }
    }
  }

  /** The words of both sides, broken into lines, and the links between them; returns {nodes, height}. */
  function pair(column, lit, width) {
    const nodes = [];
    const boxes = {};
    const step = lit?.phrases.length ? 44 : 34; // room for lines above the words
    let y = 0;
    for (const side of ["source", "target"]) {
      let x = 0;
      y += 22;
      boxes[side] = column.view[`${side}_words`].map((word) => {
        const wide = textWidth(word, 14);
        if (x && x + wide > width) [x, y] = [0, y + step];
        const box = { x, y, width: wide, middle: x + wide / 2 };
        x += wide + 14;
        return box;
      });
      if (Explain.directionOf(column.view[`${side}_words`]) === "rtl") mirror(boxes[side]);
      if (side === "source") y += 44;
    }
    const lines = (side) => new Set(boxes[side].map((box) => box.y)).size;
    for (const link of links(column, lit, lines("source") + lines("target") === 2)) {
      const [[s], [t]] = [runs(boxes.source, link.source), runs(boxes.target, link.target)];
      if (!s || !t) continue;
      const [y1, y2] = [s.y + (lit?.side === "source" ? 19 : 7), t.y - 17];
      const [from, to, half] = [round(s.middle), round(t.middle), (y1 + y2) / 2];
      const d = `M${from},${y1} C${from},${half} ${to},${half} ${to},${y2}`;
      nodes.push(
        svg("path", {
          d,
          fill: "none",
          stroke: lit ? "#2171b5" : "#b3bac2",
          "stroke-width": round(link.width),
          opacity: lit ? 0.6 : 1,
        }),
      );
    }
    for (const side of ["source", "target"]) {
      column.view[`${side}_words`].forEach((word, i) => {
        const box = boxes[side][i];
        const weight = lit?.side === side ? (lit.weights.get(i) ?? 0) : 0;
        const isActive = lit?.active.some((a) => a.side === side && a.index === i);
        const frame = { x: round(box.x - 4), y: box.y - 15, width: round(box.width + 8), height: 21, rx: 4 };
        const shade = Explain.wordShade(weight);
        if (shade) nodes.push(svg("rect", { ...frame, fill: colour(shade) }));
        if (isActive) nodes.push(svg("rect", { ...frame, fill: "none", stroke: "#1d1f21", "stroke-width": 1.5 }));
        nodes.push(text(box.x, box.y, word, { "font-size": 14, fill: ink(shade) }));
        if (shade)
          nodes.push(
            text(box.middle, box.y + 15, percent(weight), { "font-size": 9, "text-anchor": "middle", fill: "#555" }),
          );
      });
    }
    nodes.push(...(lit?.phrases ?? []).flatMap((phrase) => brackets(boxes[lit.side], phrase)));
    return { nodes, height: y + 24 };
  }

  const word = (index) => [index, index + 1];

  /** Pairs of words or phrases [first, end) that a curve joins. */
  function links(column, lit, isShort) {
    const rest = ([s, t]) => ({ source: word(s), target: word(t), width: 1.2 });
    if (!lit) return isShort ? column.view.word_links.map(rest) : [];
    return lit.active.flatMap(({ side, index }) =>
      side === lit.side
        ? []
        : Explain.endsOf(lit)
            .filter(({ weight }) => Explain.wordShade(weight))
            .map(({ words, weight }) => ({ [side]: word(index), [lit.side]: words, width: 1 + 9 * weight })),
    );
  }

  /** The words [first, end) as one box in every line of words that they stand in. */
  function runs(boxes, words) {
    const some = boxes.slice(...words);
    return [...new Set(some.map((box) => box.y))].map((y) => {
      const line = some.filter((box) => box.y === y);
      const [x, end] = [Math.min(...line.map((box) => box.x)), Math.max(...line.map((box) => box.x + box.width))];
      return { x, y, end, middle: (x + end) / 2 };
    });
  }

  /** The line above a phrase. */
  const brackets = (boxes, { words, weight, level }) =>
    runs(boxes, words).map(({ x, y, end }) => {
      const place = { x1: round(x), x2: round(end), y1: y - 18 - 4 * level, y2: y - 18 - 4 * level };
      return svg("line", { ...place, stroke: colour(Math.min(1, 0.4 + weight)), "stroke-width": 3 });
    });

  /** Where each row or column begins, with gaps between blocks. */
  const places = (blocks) =>
    blocks.flatMap((block, b) =>
      Array.from({ length: block.end - block.first }, (_, i) => (block.first + i) * CELL + b * GAP),
    );

  function map(plane, scale) {
    const labels = (items) => Math.max(...items.map((item) => textWidth(clip(item.label, 28), 11))) + 10;
    const [left, top] = [labels(plane.rows), labels(plane.columns) + 20];
    const [xs, ys] = [places(plane.columnBlocks).map((x) => x + left), places(plane.rowBlocks).map((y) => y + top)];
    const nodes = [];
    for (const row of plane.rowBlocks) {
      for (const column of plane.columnBlocks) {
        const frame = {
          x: round(xs[column.first]),
          y: round(ys[row.first]),
          width: (column.end - column.first) * CELL,
          height: (row.end - row.first) * CELL,
        };
        nodes.push(
          svg("rect", {
            ...frame,
            fill: plane.use === "decoder-self" ? "#f1f2f4" : "#fff",
            stroke: "#c5cad0",
            "stroke-width": 0.5,
          }),
        );
      }
    }
    nodes.push(...cells(plane, scale, xs, ys));
    plane.columns.forEach((item, c) => {
      const [x, y] = [xs[c] + CELL / 2 + 4, top - 6];
      nodes.push(
        text(x, y, clip(item.label, 28), { "font-size": 11, transform: `rotate(-90 ${round(x)} ${round(y)})` }),
      );
    });
    plane.rows.forEach((item, r) =>
      nodes.push(text(left - 6, ys[r] + CELL / 2 + 4, clip(item.label, 28), { "font-size": 11, "text-anchor": "end" })),
    );
    if (plane.columnBlocks.length > 1 || plane.columnBlocks[0]?.kind === "phrase") {
      for (const block of plane.columnBlocks)
        nodes.push(text(xs[block.first], 10, block.name, { "font-size": 11, fill: "#555" }));
    }
    const [width, height] = [xs.at(-1) + CELL, ys.at(-1) + CELL];
    const { end, label, dark } = Explain.SCALES[scale];
    for (let i = 0; i < 24; i += 1) {
      const shade = Math.min(1, dark((end(plane.max) * (i + 0.5)) / 24, plane.max));
      nodes.push(svg("rect", { x: left + 5 * i, y: height + 10, width: 5, height: 10, fill: colour(shade) }));
    }
    nodes.push(
      text(
        left + 130,
        height + 19,
        `0 to ${percent(end(plane.max))} of a query's attention (${label}); rows read columns`,
        { "font-size": 11, fill: "#555" },
      ),
    );
    return { nodes, width: Math.max(width, left + 520), height: height + 28 };
  }

  /** Cells of one shade are one path; white ones are left out. */
  function cells(plane, scale, xs, ys) {
    const { dark } = Explain.SCALES[scale];
    const paths = new Map();
    for (let r = 0; r < plane.height; r += 1) {
      for (let c = 0; c < plane.width; c += 1) {
        const shade = Math.round(dark(plane.values[r * plane.width + c], plane.max) * SHADES);
        if (!shade || plane.hidden(r, c)) continue;
        if (!paths.has(shade)) paths.set(shade, []);
        paths.get(shade).push(`M${round(xs[c])},${round(ys[r])}h${CELL}v${CELL}h-${CELL}z`);
      }
    }
    return [...paths].map(([shade, moves]) => svg("path", { d: moves.join(""), fill: colour(shade / SHADES) }));
  }

  /** The picture of a page as text. */
  Explain.exportSvg = (page) => {
    const nodes = [];
    let [y, widest] = [MARGIN, 360];
    const stack = (group, height, width) => {
      nodes.push(svg("g", { transform: `translate(${MARGIN} ${round(y)})` }, group));
      y += height;
      widest = Math.max(widest, width);
    };
    for (const column of page.columns) {
      const drawn = column.planes ? map(column.planes.shown, page.state.scale) : null;
      const width = Math.max(640, Math.min(MOST, drawn?.width ?? MOST));
      stack(
        [
          text(0, 14, column.model.label, { "font-size": 16, "font-weight": 600 }),
          text(0, 32, column.title ?? "", { "font-size": 12, fill: "#555" }),
        ],
        48,
        width,
      );
      const words = pair(column, column.words.lit, width);
      stack(words.nodes, words.height + 12, width);
      if (drawn) stack(drawn.nodes, drawn.height + 24, drawn.width);
    }
    const [width, height] = [Math.ceil(widest + 2 * MARGIN), Math.ceil(y + MARGIN)];
    const picture = svg(
      "svg",
      {
        xmlns: "http://www.w3.org/2000/svg",
        width,
        height,
        viewBox: `0 0 ${width} ${height}`,
        "font-family": FONT,
        fill: "#1d1f21",
      },
      svg("title", {}, page.sentence.source),
      svg("rect", { width: "100%", height: "100%", fill: "#fff" }),
      nodes,
    );
    return new XMLSerializer().serializeToString(picture).replace(NOT_IN_XML, "\ufffd");
  };
})();
