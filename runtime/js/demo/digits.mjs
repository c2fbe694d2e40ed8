// Digits drawn with the mouse, classified as they are drawn.

const SIZE = 8; // of what the network sees, in pixels
const FINE = 32; // each is the mean of 4x4 of these, as in the images that it was trained on
const INK = 310; // of a digit there, in these: thin ones are drawn thicker
const [THIN, THICK] = [3.5, 9]; // pens

/** Args: program: of samples/browser.py, `image` to `probabilities`. */
export function drawDigits(program) {
  const paper = document.getElementById("paper");
  const scores = document.getElementById("scores");
  const bars = Array.from({ length: 10 }, (_, digit) => {
    const [name, bar, share] = ["span", "div", "span"].map((tag) => document.createElement(tag));
    name.textContent = digit;
    scores.append(name, bar, share);
    return { name, bar, share };
  });
  let strokes = [];
  let drawing = false;
  let running = false;
  let changed = false;

  const show = (probabilities) => {
    const most = Math.max(...probabilities);
    bars.forEach(({ name, bar, share }, digit) => {
      bar.style.width = `${100 * probabilities[digit]}%`;
      share.textContent = strokes.length ? `${Math.round(100 * probabilities[digit])} %` : "";
      name.className = strokes.length && probabilities[digit] === most ? "most" : "";
    });
    scores.dataset.digit = strokes.length ? probabilities.indexOf(most) : "";
  };

  /** Runs whenever something was drawn since the last run began. */
  const classify = async () => {
    changed = true;
    if (running) return;
    running = true;
    while (changed) {
      changed = false;
      const { probabilities } = await program.run({ image: seen(strokes) });
      show(strokes.length ? probabilities : new Float32Array(10));
    }
    running = false;
  };

  const point = ({ clientX, clientY }) => {
    const { left, top, width } = paper.getBoundingClientRect();
    return [((clientX - left) * paper.width) / width, ((clientY - top) * paper.width) / width];
  };
  const redraw = () => {
    const context = paper.getContext("2d");
    context.clearRect(0, 0, paper.width, paper.height);
    draw(context, strokes, 36, "#50aaeb");
    return classify();
  };
  paper.addEventListener("pointerdown", (event) => {
    paper.setPointerCapture(event.pointerId);
    drawing = true;
    strokes.push([point(event)]);
    redraw();
  });
  paper.addEventListener("pointermove", (event) => {
    if (!drawing) return;
    strokes.at(-1).push(...event.getCoalescedEvents().map(point), point(event));
    redraw();
  });
  for (const end of ["pointerup", "pointercancel"])
    paper.addEventListener(end, () => (drawing = false));
  document.getElementById("wipe").addEventListener("click", () => {
    strokes = [];
    redraw();
  });
  redraw();
}

function draw(context, strokes, pen, color) {
  Object.assign(context, { lineWidth: pen, lineCap: "round", lineJoin: "round" });
  context.strokeStyle = color;
  for (const points of strokes) {
    context.beginPath();
    for (const [x, y] of points) context.lineTo(x, y);
    context.lineTo(
      ...points[0].map((place, i) => points.at(-1)[i] + (points.length > 1 ? 0 : 0.1)),
    );
    context.stroke();
  }
}

const lengthOf = (points) =>
  points.reduce((sum, [x, y], i) => {
    const [fromX, fromY] = points[Math.max(0, i - 1)];
    return sum + Math.hypot(x - fromX, y - fromY);
  }, 0);

/** The strokes as the network knows digits: of one height, in the middle, ink from 0 to 1. */
function seen(strokes) {
  const image = new Float32Array(SIZE * SIZE);
  if (strokes.length) {
    const points = strokes.flat();
    const [left, right, top, bottom] = [0, 1].flatMap((axis) => {
      const places = points.map((place) => place[axis]);
      return [Math.min(...places), Math.max(...places)];
    });
    const extent = Math.max(bottom - top, right - left, 1);
    const length = strokes.map(lengthOf).reduce((sum, each) => sum + each, 1);
    const pen = Math.min(THICK, Math.max(THIN, (INK / FINE) * (extent / length)));
    const scale = (FINE - pen) / extent;
    const moved = strokes.map((stroke) =>
      stroke.map(([x, y]) => [
        FINE / 2 + (x - (left + right) / 2) * scale,
        FINE / 2 + (y - (top + bottom) / 2) * scale,
      ]),
    );
    const context = new OffscreenCanvas(FINE, FINE).getContext("2d");
    draw(context, moved, pen, "#000");
    const { data } = context.getImageData(0, 0, FINE, FINE);
    const step = FINE / SIZE;
    for (let y = 0; y < FINE; y++)
      for (let x = 0; x < FINE; x++) {
        const pixel = Math.floor(y / step) * SIZE + Math.floor(x / step);
        image[pixel] += data[4 * (y * FINE + x) + 3] / 255 / step ** 2;
      }
  }
  const small = document.getElementById("seen").getContext("2d");
  const pixels = small.createImageData(SIZE, SIZE);
  image.forEach((ink, i) => pixels.data.set([80, 170, 235, 255 * ink], 4 * i));
  small.putImageData(pixels, 0, 0);
  return image;
}
