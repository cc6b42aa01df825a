import { useEffect, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { theme } from "./theme.ts";

export interface Series {
  label: string;
  tone: string;
  /** Drawn as a dashed line of steps, with nothing filled below it. */
  isLimit?: boolean;
}

const CLOCK = new Intl.DateTimeFormat("en-GB", { timeStyle: "short" });

/** Lines over time, and a legend with the value under the pointer, else the newest. */
export function Chart({
  series,
  data,
  format,
  axisFormat = format,
  axisSteps,
  label,
  lastText,
  elapsedText,
  least = 4,
  axisWidth = 58,
  height = 168,
}: {
  series: Series[];
  data: (number | null)[][];
  /** A value with its unit. */
  format: (n: number) => string;
  /** The same on the axis; default: as `format`. */
  axisFormat?: (n: number) => string;
  /** Distances that the lines of the axis may have; default: 1, 2 or 5 with any number of zeros. */
  axisSteps?: number[];
  label: string;
  /** What the newest values are of. */
  lastText: string;
  /** Times are seconds since a start, in these words; default: instants. */
  elapsedText?: (seconds: number) => string;
  /** The axis of values reaches at least this far. */
  least?: number;
  axisWidth?: number;
  height?: number;
}) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const [pointed, setPointed] = useState<number | null>(null);
  const drawn = theme.value;
  useEffect(() => {
    const element = box.current;
    if (element === null) return;
    const [grid, text] = [colourOf(element, "chart-grid"), colourOf(element, "chart-text")];
    const font = `11px ${getComputedStyle(element).fontFamily}`;
    const axis = { stroke: text, font, grid: { stroke: grid, width: 1 }, ticks: { show: false } };
    const made = new uPlot(
      {
        width: element.clientWidth,
        height,
        padding: [8, 8, 0, 0],
        cursor: { y: false, points: { size: 7 } },
        legend: { show: false },
        hooks: { setCursor: [({ cursor }) => setPointed(cursor.idx ?? null)] },
        scales: { y: { range: (_, _low, high) => [0, Math.max(least, high * 1.15)] } },
        ...(elapsedText === undefined ? {} : { tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1_000), "Etc/UTC") }),
        axes: [
          {
            ...axis,
            size: 28,
            space: 90,
            values: (_, times) => times.map(elapsedText ?? ((time) => CLOCK.format(time * 1_000))),
          },
          {
            ...axis,
            size: axisWidth,
            space: 36,
            values: (_, values) => values.map(axisFormat),
            ...(axisSteps === undefined ? {} : { incrs: axisSteps }),
          },
        ],
        series: [
          { label: "time" },
          ...series.map(({ label, tone, isLimit = false }) => {
            const stroke = colourOf(element, `tone-${tone}`);
            const line = { label, stroke, width: 2, points: { show: false } };
            const steps = uPlot.paths.stepped?.({ align: 1 }) as uPlot.Series.PathBuilder;
            return isLimit ? Object.assign(line, { dash: [6, 4], paths: steps }) : Object.assign(line, { fill: faded(stroke) });
          }),
        ],
      },
      data as uPlot.AlignedData,
      element,
    );
    plot.current = made;
    const observer = new ResizeObserver(() => made.setSize({ width: element.clientWidth, height }));
    observer.observe(element);
    return () => {
      observer.disconnect();
      made.destroy();
      plot.current = null;
    };
  }, [drawn]);
  useEffect(() => plot.current?.setData(data as uPlot.AlignedData), [data]);
  const times = data[0] ?? [];
  const at = pointed ?? times.length - 1;
  const timeText = (seconds: number) =>
    elapsedText === undefined ? `at ${CLOCK.format(seconds * 1_000)}` : `after ${elapsedText(seconds)}`;
  const formatted = (n: number | null | undefined) => (n === null || n === undefined ? "–" : format(n));
  return (
    <>
      <div class="chart" ref={box} role="img" aria-label={label} />
      <ul class="legend">
        {series.map(({ label: name, tone }, i) => (
          <li class={`tone-${tone}`} key={name}>
            <span class="dot" aria-hidden="true" />
            <span class="muted">{name}</span> <strong>{formatted(data[i + 1]?.[at])}</strong>
          </li>
        ))}
        <li class="muted">{pointed === null ? lastText : timeText(times[at] ?? 0)}</li>
      </ul>
    </>
  );
}

/** A canvas needs the colour itself, not the name that the style sheet has for it. */
function colourOf(parent: HTMLElement, name: string): string {
  const probe = document.createElement("span");
  probe.className = `probe ${name}`;
  parent.append(probe);
  const { color } = getComputedStyle(probe);
  probe.remove();
  return color;
}

function faded(colour: string): string {
  return colour.replace(/^rgb\((.+)\)$/, "rgba($1, 0.12)");
}
