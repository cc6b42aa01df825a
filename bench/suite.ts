/** One line of a report. */
export interface Line {
  text: string;
  /** Whether it reached what was set out. */
  holds: boolean;
  /** For `--json`. */
  data: object;
}

/** What is measured of one store, in parts that can be run alone. */
export interface Suite {
  heading: string;
  parts: Record<string, () => Promise<Line[]>>;
  close(): Promise<void>;
}

export interface SuiteOptions {
  quick: boolean;
  /** Whether the page about it is written again. */
  write: boolean;
}
