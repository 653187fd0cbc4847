"use strict";
/* Explain shows an explain document (its format: docs/explain.md). This file: elements, colours, and attention as numbers. */
const Explain = {};

/* Elements. Texts of the document enter as text nodes and attributes only, never as markup. */
(() => {
  function fill(node, attributes, children) {
    for (const [name, value] of Object.entries(attributes)) {
      if (value === null || value === undefined || value === false) continue;
      if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else node.setAttribute(name, value === true ? "" : String(value));
    }
    node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
    return node;
  }
  Explain.html = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
  Explain.svg = (tag, attributes = {}, ...children) =>
    fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

  /** `share` in 1 as a percentage that a reader can compare: 31 %, 4.2 %, <0.1 %. */
  Explain.percent = (share) => {
    const value = share * 100;
    if (value > 0 && value < 0.1) return "<0.1 %";
    return `${value >= 9.95 || value === 0 ? Math.round(value) : value.toFixed(1)} %`;
  };
  Explain.decimal = (value) => value.toFixed(2).replace("-", "−");
  Explain.clip = (text, length) => (text.length <= length ? text : `${text.slice(0, length - 1)}…`);
  Explain.orderName = (order) => (order === 1 ? "tokens" : `${order}-grams`);

  const rulers = new Map();
  /** Width in pixels of `text` in `size` pixels of the page's font. */
  Explain.textWidth = (text, size = 12) => {
    if (!rulers.has(size)) {
      const ruler = document.createElement("canvas").getContext("2d");
      ruler.font = `${size}px ${getComputedStyle(document.body).fontFamily}`;
      rulers.set(size, ruler);
    }
    return rulers.get(size).measureText(text).width;
  };
})();

/* Colours: one hue, white to dark blue, so that the order of colours is that of their darkness. */
(() => {
  const STOPS = [
    [255, 255, 255],
    [222, 235, 247],
    [172, 208, 230],
    [107, 174, 214],
    [49, 130, 189],
    [14, 90, 160],
    [8, 48, 107],
  ];
  const TABLE = Array.from({ length: 256 }, (_, i) => {
    const place = (i / 255) * (STOPS.length - 1);
    const first = Math.min(Math.floor(place), STOPS.length - 2);
    return STOPS[first].map((value, k) => Math.round(value + (STOPS[first + 1][k] - value) * (place - first)));
  });
  const index = (share) => Math.max(0, Math.min(255, Math.round(share * 255)));
  Explain.rgb = (share) => TABLE[index(share)];
  Explain.colour = (share) => `rgb(${TABLE[index(share)].join(",")})`;
  /** The colour of writing on `colour(share)`. */
  Explain.ink = (share) => (share > 0.55 ? "#fff" : "#1d1f21");

  /** How dark a weight is, 0 to 1; `max`: the largest weight of the map. */
  Explain.SCALES = {
    max: { label: "linear, to the maximum", dark: (weight, max) => weight / max, end: (max) => max },
    root: { label: "square root, to the maximum", dark: (weight, max) => Math.sqrt(weight / max), end: (max) => max },
    one: { label: "linear, to 100 %", dark: (weight) => weight, end: () => 1 },
  };
})();

/* Attention. */
(() => {
  Explain.USES = {
    cross: { label: "Cross-attention", rows: "target", columns: "source" },
    "encoder-self": { label: "Encoder self-attention", rows: "source", columns: "source" },
    "decoder-self": { label: "Decoder self-attention", rows: "decoder input", columns: "decoder input" },
    "encoder-phrases": { label: "Encoder attention to phrases", rows: "source", columns: "phrases" },
    "decoder-phrases": { label: "Decoder attention to phrases", rows: "target", columns: "phrases" },
  };
  const isOfPhrases = (use) => use.endsWith("-phrases");

  const opened = new WeakMap();
  async function inflate(packed) {
    const bytes = Uint8Array.from(atob(packed.data), (character) => character.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    const data = new Uint8Array(await new Response(stream).arrayBuffer());
    const size = packed.shape.reduce((product, length) => product * length, 1);
    if (data.length !== size) throw new Error(`${data.length} weights where ${packed.shape.join(" × ")} are expected`);
    return data;
  }
  /** The bytes of packed weights, inflated once. */
  Explain.open = (packed) => {
    if (!opened.has(packed)) opened.set(packed, inflate(packed));
    return opened.get(packed);
  };

  /** The words [first, end) that the tokens [begin, end) touch; null where there are none (the ends of a sentence). */
  function wordsOf(spans, begin, end) {
    const found = spans.slice(begin, end).filter((span) => span !== null);
    return found.length ? [Math.min(...found.map((s) => s[0])), Math.max(...found.map((s) => s[1]))] : null;
  }

  /** The words [first, end) of each token of a side; null for its end. */
  function spansOf(view, side) {
    if (side === "target") return view.target_span;
    return view.source_word.map((word) => (word === null ? null : [word, word + 1]));
  }

  const listed = new WeakMap();
  /** One axis as a list of {label, kind, order, end, words}; `kind`: token, 2-gram, phrase; `end`: the last token (-1: BOS). */
  function items(view, axis, areSourcePhrases = false) {
    if (!listed.has(axis)) {
      const spans = spansOf(view, axis.side);
      listed.set(
        axis,
        axis.labels.map((label, i) => {
          const [end, order] = [axis.ends[i], axis.orders[i]];
          const kind = areSourcePhrases ? "phrase" : order === 1 ? "token" : `${order}-gram`;
          return { label, kind, order, end, words: wordsOf(spans, Math.max(0, end - order + 1), end + 1) };
        }),
      );
    }
    return listed.get(axis);
  }

  function blocks(list) {
    const found = [];
    list.forEach((item, i) => {
      if (found.at(-1)?.kind !== item.kind) found.push({ kind: item.kind, name: `${item.kind}s`, first: i, end: i });
      found.at(-1).end = i + 1;
    });
    return found;
  }

  function average(bytes, [heads, height, width], scale, head) {
    const size = height * width;
    const values = new Float32Array(size);
    const [first, end] = head === null ? [0, heads] : [head - 1, head];
    for (let h = first; h < end; h += 1) {
      for (let i = 0; i < size; i += 1) values[i] += bytes[h * size + i];
    }
    const factor = scale / 255 / (end - first);
    for (let i = 0; i < size; i += 1) values[i] *= factor;
    return values;
  }

  /**
   * The weights of one head (from 1) or the mean of all (null): {rows, columns, values, height, width, max, hidden}.
   * `spread`: rows and columns are tokens, each slot's weight divided evenly among its tokens.
   */
  Explain.plane = async (view, entry, head, spread) => {
    const packed = spread && entry.tokens ? entry.tokens : entry.weights;
    const bytes = await Explain.open(packed);
    const isSpread = packed === entry.tokens;
    const rows = items(view, entry.rows).filter((item) => !isSpread || item.kind === "token");
    const columns = isSpread
      ? tokenItems(view, entry, packed.shape[2])
      : items(view, entry.columns, isOfPhrases(entry.use));
    const values = average(bytes, packed.shape, packed.scale, head);
    const future = entry.use === "decoder-self";
    return {
      rows,
      columns,
      values,
      height: rows.length,
      width: columns.length,
      use: entry.use,
      rowSide: entry.rows.side,
      columnSide: entry.columns.side,
      rowBlocks: blocks(rows),
      columnBlocks: blocks(columns),
      max: Math.max(
        1e-6,
        values.reduce((most, value) => Math.max(most, value), 0),
      ),
      hidden: (r, c) => future && columns[c].end > rows[r].end,
    };
  };

  /** The tokens of the columns' side, also where no head sees single tokens. */
  function tokenItems(view, entry, length) {
    const own = items(view, entry.columns).filter((item) => item.kind === "token");
    if (own.length === length) return own;
    const { side } = entry.columns;
    const first = entry.use === "decoder-self" ? -1 : 0;
    const labels = ["<s>", ...view[`${side}_tokens`]].slice(first + 1, first + 1 + length);
    return items(view, { side, labels, orders: labels.map(() => 1), ends: labels.map((_, i) => i + first) });
  }

  const wordList = (words) =>
    words === null ? [] : Array.from({ length: words[1] - words[0] }, (_, i) => words[0] + i);
  /** Whether a word is one of [first, end). */
  Explain.touches = (words, word) => words !== null && words[0] <= word && word < words[1];

  /** Indices of the rows (or columns) that hold a word: tokens or source phrases. */
  const holding = (list, word) =>
    list.flatMap((item, i) => (!item.kind.endsWith("gram") && Explain.touches(item.words, word) ? [i] : []));

  /**
   * What the word of the row side reads: weight of each word of the column side, and the slots from the heaviest, by the mean
   * of its token queries. `tokens` and `slots` are the planes of the same head, spread and not. A word has the weight of its
   * tokens, or of the source phrases that it is in.
   */
  Explain.reads = (tokens, slots, word) => {
    const weights = new Map();
    const queries = holding(tokens.rows, word);
    for (const r of queries) {
      tokens.columns.forEach((column, c) => {
        for (const other of wordList(column.words)) {
          weights.set(other, (weights.get(other) ?? 0) + tokens.values[r * tokens.width + c] / queries.length);
        }
      });
    }
    const found = slots.columns.map((item) => ({ ...item, weight: 0 }));
    const rows = holding(slots.rows, word);
    for (const r of rows) {
      for (let c = 0; c < slots.width; c += 1) found[c].weight += slots.values[r * slots.width + c] / rows.length;
    }
    return { weights, slots: found.filter((item) => item.weight > 0).sort((a, b) => b.weight - a.weight) };
  };

  /** Who reads the word of the column side: for each word of the row side the weight that it puts there. */
  Explain.readBy = (tokens, word) => {
    const sums = new Map();
    const counts = new Map();
    const columns = holding(tokens.columns, word);
    tokens.rows.forEach((row, r) => {
      if (row.kind !== "token") return;
      const weight = columns.reduce((sum, c) => sum + tokens.values[r * tokens.width + c], 0);
      for (const reader of wordList(row.words)) {
        sums.set(reader, (sums.get(reader) ?? 0) + weight);
        counts.set(reader, (counts.get(reader) ?? 0) + 1);
      }
    });
    return new Map([...sums].map(([key, sum]) => [key, sum / counts.get(key)]));
  };
})();
