import { cell, docOf, generatedBy, type Node, parseSources, type SourceFile } from "./source.ts";

/** docs/reference.md, from the types of the `options` of each call and their doc comments. */

/**
 * Calls by the name of the function, or of the class or interface and its method; or a type. The options of the call in the fourth
 * column are left out.
 */
const SECTIONS: [heading: string, declared: string, about: string, without?: string][] = [
  [
    "open(where, options)",
    "open",
    "Opens a database. `where` is a path, `:memory:` or `postgres://…`; default: `HOLDFAST_DB`, else `.holdfast/work.db`.",
  ],
  ["backups of open", "BackupsOptions", "Scheduled backups of a SQLite file. See [backups](backups.md)."],
  ["sinks of open", "SinkOptions", "One sink of events. See [events](events.md)."],
  [
    "holdfast.config.ts",
    "Config",
    "The default export of the config file, besides the options of `open`. See [configuration](configuration.md).",
    "open",
  ],
  ["job(options)", "job", "Defines a kind of job. See [the guide](guide.md)."],
  [
    "queue of job",
    "QueueOptions",
    "A queue and the settings of all its jobs; the last process to declare them wins. See [queues](queues.md).",
  ],
  ["limit of job, queue and stage", "Limit", "A limit over all workers. See [limits](limits.md)."],
  [
    "hf.enqueue(job, input, options)",
    "Holdfast.enqueue",
    "Resolves when the job is durable. `hf.enqueueMany` takes the same options, without `tx`.",
  ],
  ["hf.work(jobs, options)", "Holdfast.work", "Runs jobs and pipelines in this process until the worker is stopped."],
  ["hf.claim(from, options)", "Holdfast.claim", "Claims one job by hand. See [claims](claims.md)."],
  [
    "hf.schedule(job, options)",
    "Holdfast.schedule",
    "Enqueues a job at each tick of a cron pattern. See [schedules](schedules.md).",
  ],
  ["hf.events.subscribe(on, options)", "Holdfast.subscribe", "Calls `on` with each event, in order. See [events](events.md)."],
  ["hf.backup(path, options)", "Holdfast.backup", "Copies the database while it is in use. See [backups](backups.md)."],
  ["pipeline(name, options)", "pipeline", "Defines a pipeline. See [pipelines](pipelines.md)."],
  [".source(files(globs, options))", "files", "Files as targets."],
  [".source(items(list, options))", "items", "Records as targets."],
  [".stage(name, options, run)", "Pipeline.stage", "One step of each target."],
  [
    ".expand(name, options, run)",
    "Pipeline.expand",
    "Makes many targets of each. It takes the options of a stage except `uses` and `match`.",
    "Pipeline.stage",
  ],
  [
    ".gather(name, options, run)",
    "Pipeline.gather",
    "Makes one target of all, or of each group. It takes the options of `expand` and:",
    "Pipeline.expand",
  ],
  ["hf.builds.start(pipeline, options)", "Builds.start", "Starts a build. `hf.builds.watch` takes the same options."],
  [
    "hf.builds.resume(pipeline, id, options)",
    "Builds.resume",
    "Continues a build. It takes the options of `start` and:",
    "Builds.start",
  ],
  [
    "hf.builds.plan(pipeline, options)",
    "Builds.plan",
    "Says what a build would do and cost. It takes the options of `start`.",
    "Builds.start",
  ],
];

/** Aliases that are shorter when they are written out. */
const SPELLED_OUT = new Set(["Durability", "Missed", "Key", "Run"]);

interface Option {
  name: string;
  type: string;
  isRequired: boolean;
  about: string;
}

export function reference(): string {
  const types = new Types(
    parseSources("src/*.ts", "src/core/**/*.ts", "src/engine/**/*.ts", "src/pipelines/**/*.ts", "src/store/store.ts"),
  );
  const sections = SECTIONS.map(([heading, declared, about, without]) => {
    const known = new Set(without === undefined ? [] : types.optionsOf(without).map(({ name }) => name));
    const options = types.optionsOf(declared).filter(({ name }) => !known.has(name));
    return [`## ${heading}`, "", about, ...(options.length === 0 ? [] : ["", ...tableOf(options)])].join("\n");
  });
  return [
    generatedBy("scripts/reference.ts"),
    "",
    "# Reference of options",
    "",
    'Every option with its type and default. A `Duration` is milliseconds or a string such as `"90s"`, `"5m"`, `"1d"`.',
    "A `Cost` is `{ usd, tokens }`, both optional. Unknown options and surplus arguments are rejected with `OPTION_INVALID`.",
    "",
    `${sections.join("\n\n")}\n`,
  ].join("\n");
}

function tableOf(options: Option[]): string[] {
  const rows = options.map(({ name, type, isRequired, about }) => {
    const [, text = about, given] = /^([\s\S]*?)(?: ?Default: ([\s\S]*)\.)?$/.exec(about) ?? [];
    const literal = given !== undefined && /^(".*"|true|false|0o\d+|\d+)$/.test(given) ? `\`${given}\`` : given;
    const code = type.includes("`") ? `\`\` ${type} \`\`` : `\`${type}\``;
    return `| \`${name}\` | ${cell(code)} | ${cell(literal ?? (isRequired ? "required" : ""))} | ${cell(text)} |`;
  });
  return ["| option | type | default | |", "|---|---|---|---|", ...rows];
}

/** The declarations of the sources, by name. */
class Types {
  readonly #declared = new Map<string, { file: SourceFile; node: Node }[]>();

  constructor(files: SourceFile[]) {
    for (const file of files)
      for (const statement of file.body) {
        const node = statement["declaration"] as Node | null | undefined;
        if (typeof node !== "object" || node === null) continue;
        const name = (node["id"] as Node | null | undefined)?.["name"] as string | undefined;
        if (name !== undefined) this.#declared.set(name, [...(this.#declared.get(name) ?? []), { file, node }]);
      }
  }

  /** The members of a type, or of the `options` of a call, each once: the documented declaration of several. */
  optionsOf(declared: string): Option[] {
    const [owner = "", method] = declared.split(".");
    const found = this.#find(owner).flatMap(({ file, node }) =>
      method === undefined ? [{ file, node }] : methodsIn(node, method).map((one) => ({ file, node: one })),
    );
    const options = new Map<string, Option>();
    for (const { file, node } of found) {
      const parameters = (node["params"] as Node[] | undefined)?.map(unwrap);
      const taken = parameters === undefined ? node : parameters.find((parameter) => parameter["name"] === "options");
      if (taken === undefined) throw new Error(`${declared} has no parameter \`options\``);
      for (const option of this.#members(file, taken)) {
        const known = options.get(option.name);
        if (known === undefined || known.about === "") options.set(option.name, option);
        else if (taken.type === "TSTypeAliasDeclaration") known.type += ` | ${option.type}`;
      }
    }
    for (const { name, about } of options.values()) if (about === "") throw new Error(`${declared}: ${name} has no doc comment`);
    return [...options.values()];
  }

  #find(name: string): { file: SourceFile; node: Node }[] {
    const found = this.#declared.get(name);
    if (found === undefined) throw new Error(`src/ declares no ${name}`);
    if (found.some(({ file }) => file !== found[0]?.file)) throw new Error(`src/ declares ${name} twice`);
    return found;
  }

  #members(file: SourceFile, node: Node): Option[] {
    const below = (part: unknown) => (part as Node[]).flatMap((one) => this.#members(file, one));
    switch (node.type) {
      case "Identifier":
        return this.#members(file, (node["typeAnnotation"] as Node)["typeAnnotation"] as Node);
      case "TSTypeAliasDeclaration":
        return this.#members(file, node["typeAnnotation"] as Node);
      case "TSIntersectionType":
      case "TSUnionType":
        return below(node["types"]);
      case "TSTypeReference":
        return this.#named((node["typeName"] as Node)["name"] as string);
      case "TSInterfaceDeclaration":
        return [
          ...below((node["body"] as Node)["body"]),
          ...(node["extends"] as Node[]).flatMap((one) => this.#named((one["expression"] as Node)["name"] as string)),
        ];
      case "TSTypeLiteral":
        return below(node["members"]);
      case "TSPropertySignature":
        return [
          {
            name: (node["key"] as Node)["name"] as string,
            type: this.#typeText(file.text, (node["typeAnnotation"] as Node)["typeAnnotation"] as Node),
            isRequired: node["optional"] !== true,
            about: docOf(file, node),
          },
        ];
      default:
        throw new Error(`${file.path}: cannot read the options of a ${node.type}`);
    }
  }

  #named(name: string): Option[] {
    return this.#find(name).flatMap(({ file, node }) => this.#members(file, node));
  }

  /** As written, but with the short aliases of `SPELLED_OUT`, and of functions with the names of the parameters only. */
  #typeText(text: string, node: Node): string {
    const spell = (one: Node) => this.#typeText(text, one);
    const written = (one: Node) => text.slice(one.start, one.end).replaceAll(/\s+/g, " ");
    if (node.type === "TSUnionType") return (node["types"] as Node[]).map(spell).join(" | ");
    if (node.type === "TSParenthesizedType") return `(${spell(node["typeAnnotation"] as Node)})`;
    const name = node.type === "TSTypeReference" ? ((node["typeName"] as Node)["name"] as string) : "";
    if (SPELLED_OUT.has(name)) {
      const [{ file, node: alias } = {} as never] = this.#find(name);
      return this.#typeText(file.text, alias["typeAnnotation"] as Node);
    }
    if (node.type !== "TSFunctionType") return written(node).replace(/^U\[\]$/, "string[]");
    const names = (node["params"] as Node[]).map((parameter) => parameter["name"] as string);
    return `(${names.join(", ")}) => ${written((node["returnType"] as Node)["typeAnnotation"] as Node)}`;
  }
}

/** Declarations of a method in a class or interface, also inside the type of one of its properties. */
function methodsIn(node: Node, name: string): Node[] {
  const members = ((node["body"] as Node | undefined)?.["body"] ?? node["members"] ?? []) as Node[];
  return members.flatMap((member) => {
    if ((member["key"] as Node | undefined)?.["name"] === name && member.type !== "TSPropertySignature")
      return [(member["value"] as Node | undefined) ?? member];
    const type = (member["typeAnnotation"] as Node | null | undefined)?.["typeAnnotation"] as Node | undefined;
    return type?.type === "TSTypeLiteral" ? methodsIn(type, name) : [];
  });
}

/** A parameter without its default value. */
function unwrap(parameter: Node): Node {
  return parameter.type === "AssignmentPattern" ? (parameter["left"] as Node) : parameter;
}
