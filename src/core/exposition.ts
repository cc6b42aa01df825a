/** Samples of one name, as Prometheus knows them. A counter never falls, but where the database is another. */
export interface Family {
  name: string;
  type: "gauge" | "counter";
  help: string;
  samples: readonly Sample[];
}

export interface Sample {
  labels: Readonly<Record<string, string>>;
  value: number;
}

/** Prometheus' text format: each family in one piece, and the last line ended, too. One without samples is left out. */
export function exposition(families: readonly Family[]): string {
  return families.map(sayFamily).join("");
}

function sayFamily({ name, type, help, samples }: Family): string {
  if (samples.length === 0) return "";
  const lines = samples.map(({ labels, value }) => `${name}${sayLabels(labels)} ${sayValue(value)}\n`);
  return `# HELP ${name} ${escape(help)}\n# TYPE ${name} ${type}\n${lines.join("")}`;
}

function sayLabels(labels: Sample["labels"]): string {
  const said = Object.entries(labels).map(([name, value]) => `${name}="${escape(value.toWellFormed()).replaceAll('"', '\\"')}"`);
  return said.length === 0 ? "" : `{${said.join(",")}}`;
}

/** A line break ends a sample, and in a name of somebody's queue it must not. */
function escape(text: string): string {
  return text.replaceAll("\\", "\\\\").replaceAll("\n", "\\n");
}

function sayValue(value: number): string {
  if (value === Number.POSITIVE_INFINITY) return "+Inf";
  return value === Number.NEGATIVE_INFINITY ? "-Inf" : String(value);
}
