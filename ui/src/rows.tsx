import { elementScroll, observeElementOffset, observeElementRect, Virtualizer } from "@tanstack/virtual-core";
import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useReducer, useRef, useState } from "preact/hooks";

const NARROW = matchMedia("(max-width: 760px)");
const ROW_PX = 41;
const NARROW_ROW_PX = 70;
const NEAR_END_ROWS = 20;

interface Props<T> {
  items: readonly T[];
  keyOf: (item: T) => string;
  /** Column names; the class of the table sets their widths. */
  head: string[];
  name: string;
  label: string;
  cells: (item: T) => ComponentChildren[];
  /** Called when the end comes into view. */
  onEnd?: () => void;
  /** Widths of the columns, where their number differs. */
  columns?: string;
  foot?: ComponentChildren;
}

/** A table whose rows exist only while they are in view, so that any number of them can be scrolled through. */
export function Rows<T>({ items, keyOf, head, name, label, cells, onEnd, columns, foot }: Props<T>) {
  const scroller = useRef<HTMLDivElement>(null);
  const [, redraw] = useReducer((n: number) => n + 1, 0);
  const [isNarrow, setNarrow] = useState(NARROW.matches);
  const columnStyle = columns === undefined ? {} : { gridTemplateColumns: columns };
  const rowPx = isNarrow && columns === undefined ? NARROW_ROW_PX : ROW_PX;
  const options = {
    count: items.length,
    getScrollElement: () => scroller.current,
    estimateSize: () => rowPx,
    overscan: 8,
    scrollToFn: elementScroll,
    observeElementRect,
    observeElementOffset,
    onChange: () => redraw(undefined),
  };
  const [virtualizer] = useState(() => new Virtualizer<HTMLDivElement, HTMLDivElement>(options));
  virtualizer.setOptions(options);
  useLayoutEffect(() => virtualizer._didMount(), []);
  useLayoutEffect(() => virtualizer._willUpdate());
  useEffect(() => {
    const listen = () => setNarrow(NARROW.matches);
    NARROW.addEventListener("change", listen);
    return () => NARROW.removeEventListener("change", listen);
  }, []);
  useEffect(() => virtualizer.measure(), [rowPx]);
  const shown = virtualizer.getVirtualItems();
  const lastShown = shown.at(-1)?.index ?? 0;
  useEffect(() => {
    if (items.length > 0 && lastShown >= items.length - NEAR_END_ROWS) onEnd?.();
  }, [lastShown, items.length]);
  return (
    <div class={`rows ${name}`}>
      <div role="table" aria-label={label} aria-rowcount={items.length + 1}>
        <div role="rowgroup" class="rows-head">
          <div role="row" aria-rowindex={1} class="row" style={columnStyle}>
            {head.map((text) => (
              <div role="columnheader" key={text}>
                {text}
              </div>
            ))}
          </div>
        </div>
        <div role="rowgroup" class="rows-scroll" ref={scroller} tabIndex={0} aria-label={`${label}, rows`}>
          <div role="presentation" class="rows-space" style={{ height: `${virtualizer.getTotalSize()}px` }}>
            {shown.map(({ index, start }) => {
              const item = items[index];
              if (item === undefined) return null;
              return (
                <div
                  role="row"
                  aria-rowindex={index + 2}
                  class="row"
                  key={keyOf(item)}
                  style={{ ...columnStyle, transform: `translateY(${start}px)`, height: `${rowPx}px` }}
                >
                  {cells(item).map((cell, i) => (
                    <div role="cell" key={i}>
                      {cell}
                    </div>
                  ))}
                </div>
              );
            })}
          </div>
        </div>
      </div>
      {foot}
    </div>
  );
}
