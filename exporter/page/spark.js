// Sparklines: one canvas each, drawn when a point arrives or the theme changes.

let colours = {};

function readColours() {
  const css = getComputedStyle(document.documentElement);
  colours = Object.fromEntries(
    ["line", "fill", "second", "grid"].map((name) => [name, css.getPropertyValue(`--chart-${name}`).trim()]),
  );
}

document.addEventListener("theme", readColours);

// draw paints one or two series, from 0 to top, onto a canvas. Gaps stay gaps.
export function draw(canvas, all, top) {
  if (!colours.line) readColours();
  const ratio = Math.min(window.devicePixelRatio || 1, 2);
  const width = Math.round(canvas.clientWidth * ratio);
  const height = Math.round(canvas.clientHeight * ratio);
  if (!width || !height) return;
  if (canvas.width !== width || canvas.height !== height) {
    canvas.width = width;
    canvas.height = height;
  }
  const c = canvas.getContext("2d");
  c.clearRect(0, 0, width, height);
  c.strokeStyle = colours.grid;
  c.lineWidth = ratio;
  c.beginPath();
  c.moveTo(0, height - ratio / 2);
  c.lineTo(width, height - ratio / 2);
  c.stroke();
  c.lineWidth = 1.4 * ratio;
  c.lineJoin = "round";
  all.forEach((points, i) =>
    line(c, points, top, width, height, ratio, i === 0 ? colours.line : colours.second, i === 0 ? colours.fill : null),
  );
}

function line(c, points, top, width, height, ratio, colour, fill) {
  const room = height - 2 * ratio;
  const y = (v) => height - ratio - room * Math.min(1, Math.max(0, v / top));
  const x = (i) => (i * (width - ratio)) / (points.length - 1);
  c.strokeStyle = colour;
  for (let i = 0; i < points.length; ) {
    if (points[i] === null) {
      i++;
      continue;
    }
    const from = i;
    c.beginPath();
    c.moveTo(x(i), y(points[i]));
    for (i++; i < points.length && points[i] !== null; i++) c.lineTo(x(i), y(points[i]));
    if (i === from + 1) c.lineTo(x(from) + ratio, y(points[from])); // a single point
    c.stroke();
    if (fill) {
      c.lineTo(x(i - 1), height);
      c.lineTo(x(from), height);
      c.fillStyle = fill;
      c.fill();
    }
  }
}

// say describes a chart for screen readers.
export function say(name, points, write, span = "15 minutes") {
  const known = points.filter((v) => v !== null);
  if (!known.length) return `${name}: nothing is known of the last ${span}`;
  const range = `${write(Math.min(...known))} to ${write(Math.max(...known))}`;
  return `${name} of the last ${span}: ${range}, now ${write(points.at(-1))}`;
}
