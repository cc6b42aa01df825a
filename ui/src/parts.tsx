import { signal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { JobState } from "./model.ts";
import type { ApiError } from "./api.ts";
import { absolute, count, json, relative } from "./format.ts";
import { now, type Reading, refresh } from "./live.ts";
import { takeHeadingFocus } from "./router.ts";

/** A heading with what belongs to it. */
export function Panel({
  title,
  note,
  actions,
  children,
  flush = false,
}: {
  title: string;
  note?: ComponentChildren;
  actions?: ComponentChildren;
  children: ComponentChildren;
  /** True: the content reaches the border, as a table does. */
  flush?: boolean;
}) {
  return (
    <section class="panel">
      <header class="panel-head">
        <h2>{title}</h2>
        {note === undefined ? null : <span class="muted">{note}</span>}
        {actions === undefined ? null : <div class="actions">{actions}</div>}
      </header>
      <div class={flush ? "panel-body flush" : "panel-body"}>{children}</div>
    </section>
  );
}

export function PageHead({
  title,
  note,
  actions,
}: {
  title: ComponentChildren;
  note?: ComponentChildren;
  actions?: ComponentChildren;
}) {
  const heading = useRef<HTMLHeadingElement>(null);
  useEffect(() => {
    if (takeHeadingFocus()) heading.current?.focus();
  }, []);
  return (
    <header class="page-head">
      <div>
        <h1 tabIndex={-1} ref={heading}>
          {title}
        </h1>
        {note === undefined ? null : <p class="muted">{note}</p>}
      </div>
      {actions === undefined ? null : <div class="actions">{actions}</div>}
    </header>
  );
}

/** What a page shows while it has nothing else: that it loads, or why it cannot. */
export function Loaded<T>({
  of,
  children,
  lines = 4,
}: {
  of: Reading<T>;
  children: (data: T) => ComponentChildren;
  lines?: number;
}) {
  const { data, error } = of;
  if (data !== null) return <>{children(data)}</>;
  return error === null ? <Loading lines={lines} /> : <Failed error={error} />;
}

export function Loading({ lines = 4 }: { lines?: number }) {
  return (
    <div class="loading" role="status">
      <span class="visually-hidden">Loading</span>
      {Array.from({ length: lines }, (_, i) => (
        <div class="bone" key={i} />
      ))}
    </div>
  );
}

export function Failed({ error }: { error: ApiError }) {
  return (
    <div class="state-note failed" role="alert">
      <Icon name="alert" />
      <div>
        <strong>{error.message}</strong>
        <p>
          <Hint text={error.hint} />
        </p>
        <p class="muted mono">{error.code}</p>
        <button type="button" class="button" onClick={refresh}>
          Try again
        </button>
      </div>
    </div>
  );
}

export function Empty({ title, children }: { title: string; children?: ComponentChildren }) {
  return (
    <div class="state-note">
      <Icon name="empty" />
      <div>
        <strong>{title}</strong>
        {children === undefined ? null : <div class="muted">{children}</div>}
      </div>
    </div>
  );
}

/** Hints quote commands as Markdown does. */
export function Hint({ text }: { text: string }) {
  return <>{text.split("`").map((part, i) => (i % 2 === 0 ? part : <code key={i}>{part}</code>))}</>;
}

/** A time as people say it; the title has it in full. */
export function Time({ at, none = "–" }: { at: number | null | undefined; none?: string }) {
  if (at === undefined || at === null || at === 0) return <span class="muted">{none}</span>;
  return (
    <time dateTime={new Date(at).toISOString()} title={absolute(at)}>
      {relative(at, now.value)}
    </time>
  );
}

const TONES: Record<string, string> = {
  waiting: "violet",
  pending: "blue",
  running: "teal",
  succeeded: "green",
  failed: "red",
  cancelled: "grey",
  quarantined: "amber",
  released: "grey",
  crashed: "red",
  "timed-out": "amber",
  PENDING: "blue",
  ACTIVE: "teal",
  SUCCESS: "green",
  FAILED: "red",
  CRASHED: "red",
  BUDGET_PAUSE: "amber",
  ABANDONED: "grey",
  alive: "green",
  dead: "red",
  rebooted: "red",
  unknown: "grey",
  paused: "amber",
  active: "green",
  stopping: "amber",
  ok: "green",
  note: "blue",
  warning: "amber",
  error: "red",
  damage: "red",
};

export function toneOf(state: string): string {
  return TONES[state] ?? "grey";
}

export function Badge({ state, text = state }: { state: JobState | string; text?: string }) {
  return (
    <span class={`badge tone-${toneOf(state)}`}>
      <span class="dot" aria-hidden="true" />
      {text}
    </span>
  );
}

/** A share of a whole, drawn as a bar. */
export function Bar({ share, label, tone = "teal" }: { share: number; label: string; tone?: string }) {
  const percent = Math.round(Math.min(1, Math.max(0, share)) * 100);
  return (
    <div class={`bar tone-${tone}`} role="img" aria-label={label}>
      <div style={{ width: `${percent}%` }} />
    </div>
  );
}

/** A command of the shell that does the same, with a button that copies it. */
export function Command({ text, label = "Command line" }: { text: string; label?: string }) {
  return (
    <div class="command">
      <code aria-label={label}>{text}</code>
      <CopyButton text={text} what="the command" />
    </div>
  );
}

export function CopyButton({ text, what }: { text: string; what: string }) {
  return (
    <button
      type="button"
      class="button quiet icon-only"
      aria-label={`Copy ${what}`}
      title={`Copy ${what}`}
      onClick={() => void copy(text)}
    >
      <Icon name="copy" />
    </button>
  );
}

async function copy(text: string): Promise<void> {
  try {
    await navigator.clipboard.writeText(text);
    notify("Copied.");
  } catch {
    notify("The browser does not allow copying here. Select the text, and copy it.", "failed");
  }
}

interface Toast {
  id: number;
  text: string;
  kind: "done" | "failed";
}
const TOAST_MS = 5_000;
export const toasts = signal<Toast[]>([]);
let lastToast = 0;

/** Says in a corner what was done. */
export function notify(text: string, kind: Toast["kind"] = "done"): void {
  const id = ++lastToast;
  toasts.value = [...toasts.value, { id, text, kind }];
  setTimeout(() => (toasts.value = toasts.value.filter((toast) => toast.id !== id)), TOAST_MS);
}

/** A browser takes seconds to lay out longer texts. */
export const MAX_SHOWN_CHARS = 100_000;
const TOKEN = /("(?:[^"\\]|\\.)*")(\s*:)?|(-?\d[\d.eE+-]*)|\b(true|false|null)\b/g;

/** JSON as text: nothing in it is ever parsed as HTML. */
export function Json({ value, label }: { value: unknown; label: string }) {
  const [isWhole, setWhole] = useState(false);
  const text = useMemo(() => json(value), [value]);
  const isCut = !isWhole && text.length > MAX_SHOWN_CHARS;
  const shown = useMemo(() => (isWhole ? chunksOf(text) : coloured(text.slice(0, MAX_SHOWN_CHARS))), [text, isWhole]);
  return (
    <div class="json">
      <CopyButton text={text} what={label} />
      <pre tabIndex={0} aria-label={label}>
        {shown}
      </pre>
      {isCut ? (
        <p class="muted">
          The first {count(MAX_SHOWN_CHARS)} of {count(text.length)} characters.{" "}
          <button type="button" class="button" onClick={() => setWhole(true)}>
            Show all<span class="visually-hidden"> of {label}</span>
          </button>
        </p>
      ) : null}
    </div>
  );
}

const CHUNK = /[^]{1,10000}(?:\n|$)|[^]{10000}/g;

/** The browser lays out only the chunks in view. */
function chunksOf(text: string): ComponentChildren[] {
  return (text.match(CHUNK) ?? []).map((chunk) => <span class="chunk">{chunk}</span>);
}

function coloured(text: string): ComponentChildren[] {
  const parts: ComponentChildren[] = [];
  let last = 0;
  for (const found of text.matchAll(TOKEN)) {
    const [whole, string, colon = "", number] = found;
    const kind = string === undefined ? (number === undefined ? "word" : "number") : colon === "" ? "string" : "name";
    if (found.index > last) parts.push(text.slice(last, found.index));
    parts.push(<span class={`json-${kind}`}>{string ?? whole}</span>, colon);
    last = found.index + whole.length;
  }
  return [...parts, text.slice(last)];
}

/** Names and values, one line each. */
export function Facts({ of }: { of: [name: string, value: ComponentChildren][] }) {
  return (
    <dl class="facts">
      {of.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

/** A table that scrolls by itself where it is wider than the page. */
export function Table({ head, label, children }: { head: ComponentChildren[]; label: string; children: ComponentChildren }) {
  return (
    <div class="table-scroll" tabIndex={0} role="region" aria-label={label}>
      <table>
        <thead>
          <tr>
            {head.map((cell, i) => (
              <th scope="col" key={i}>
                {cell}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>{children}</tbody>
      </table>
    </div>
  );
}

export function Field({ label, hint, children }: { label: string; hint?: string; children: ComponentChildren }) {
  return (
    <label class="field">
      <span>{label}</span>
      {children}
      {hint === undefined ? null : <small class="muted">{hint}</small>}
    </label>
  );
}

const ICONS = {
  overview: "M3 12h4l3 8 4-16 3 8h4",
  jobs: "M4 6h16M4 12h16M4 18h10",
  queues: "M4 5h16v5H4zM4 14h16v5H4z",
  schedules: "M12 7v5l3 3M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18",
  builds: "M4 4h7v7H4zM13 4h7v7h-7zM4 13h7v7H4zM13 13h7v7h-7z",
  recovery: "M4 12a8 8 0 1 1 2.5 5.8M4 20v-5h5",
  events: "M13 3 5 14h6l-1 7 8-11h-6z",
  audit: "M6 3h9l4 4v14H6zM9 12h7M9 16h7",
  alert: "M12 4 2.5 20h19zM12 10v4M12 17v.5",
  empty: "M4 13h4l2 3h4l2-3h4M4 13 7 5h10l3 8v6H4z",
  copy: "M9 9h11v11H9zM5 15H4V4h11v1",
  light: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8M12 2v2M12 20v2M2 12h2M20 12h2M5 5l1.5 1.5M17.5 17.5 19 19M5 19l1.5-1.5M17.5 6.5 19 5",
  dark: "M20 14.5A8 8 0 0 1 9.5 4a8 8 0 1 0 10.5 10.5",
  system: "M3 5h18v11H3zM9 20h6M12 16v4",
  help: "M9 9a3 3 0 1 1 4 2.8c-.7.3-1 .9-1 1.7M12 17v.5M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18",
  plus: "M12 5v14M5 12h14",
  back: "M15 5l-7 7 7 7",
  search: "M11 4a7 7 0 1 0 0 14 7 7 0 0 0 0-14M16 16l5 5",
  close: "M6 6l12 12M18 6 6 18",
} as const;
export type IconName = keyof typeof ICONS;

export function Icon({ name }: { name: IconName }) {
  return (
    <svg class="icon" viewBox="0 0 24 24" aria-hidden="true">
      <path d={ICONS[name]} />
    </svg>
  );
}

export function Select({
  value,
  options,
  onChange,
  label,
}: {
  value: string;
  options: readonly (readonly [value: string, text: string])[];
  onChange: (value: string) => void;
  label: string;
}) {
  return (
    <select aria-label={label} value={value} onChange={(event) => onChange(event.currentTarget.value)}>
      {options.map(([one, text]) => (
        <option value={one} key={one}>
          {text}
        </option>
      ))}
    </select>
  );
}

const TYPING_MS = 250;

/** A text that takes effect shortly after the last key. */
export function FilterText({
  label,
  value,
  onChange,
  pattern,
}: {
  label: string;
  value: string;
  onChange: (value: string) => void;
  /** A text of another form has no effect. */
  pattern?: string;
}) {
  const timer = useRef(0);
  const input = useRef<HTMLInputElement>(null);
  // What is being typed is newer than the value.
  useEffect(() => {
    if (input.current !== null && input.current !== document.activeElement) input.current.value = value;
  }, [value]);
  return (
    <input
      ref={input}
      type="search"
      aria-label={label}
      placeholder={label}
      autoComplete="off"
      spellcheck={false}
      pattern={pattern}
      onInput={({ currentTarget }) => {
        clearTimeout(timer.current);
        if (!currentTarget.validity.valid) return;
        timer.current = window.setTimeout(() => onChange(currentTarget.value.trim()), TYPING_MS);
      }}
    />
  );
}
