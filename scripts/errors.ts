import { CAUSES } from "./error-causes.ts";
import { cell, generatedBy, type Node, parseSources, type SourceFile } from "./source.ts";

/** docs/errors.md, from every place in src/ that makes a HoldfastError, and the causes in error-causes.ts. */

interface MadeError {
  code: string;
  message: string;
  hint: string;
}

interface FunctionScope {
  name: string;
  node: Node;
  parameters: string[];
}

/** An expression, or the texts that it stands for. */
type Part = Node | readonly string[];

/** A place that makes an error, and the functions around it, the innermost last. */
interface Site {
  file: SourceFile;
  parts: Part[];
  around: FunctionScope[];
}

const CODE = /^[A-Z][A-Z0-9]*(_[A-Z0-9]+)*$/;
const OPEN = "…";

export function errors(): string {
  const made = new Map<string, Set<string>>();
  for (const { code, message, hint } of findErrors()) {
    const row = `| ${cell(message)} | ${cell(hint)} |`;
    made.set(code, (made.get(code) ?? new Set()).add(row));
  }
  const codes = [...made.keys()].sort();
  const unknown = codes.filter((code) => CAUSES[code] === undefined);
  const unused = Object.keys(CAUSES).filter((code) => !made.has(code));
  if (unknown.length + unused.length > 0)
    throw new Error(
      `scripts/error-causes.ts lacks ${unknown.join(", ") || "nothing"}, and has without use ${unused.join(", ") || "nothing"}`,
    );
  const sections = codes.map((code) =>
    [`## ${code}`, "", CAUSES[code], "", "| message | what to do |", "|---|---|", ...(made.get(code) ?? [])].join("\n"),
  );
  return [
    generatedBy("scripts/errors.ts"),
    "",
    "# Errors",
    "",
    "Every `HoldfastError` has a `code` for programs, a message that says what happened, and a `hint` that says what to do.",
    "Codes stay the same between versions; messages may change. `…` stands for the value at hand. The commands print",
    "message and hint, with `--json` also the code.",
    "",
    `${sections.join("\n\n")}\n`,
  ].join("\n");
}

function findErrors(): MadeError[] {
  const files = parseSources("src/**/*.ts").map((file) => ({ file, calls: new Map<string, Site[]>() }));
  const sites = files.flatMap(({ file, calls }) => file.body.flatMap((node) => sitesIn(file, node, [], calls)));
  const callsOf = (name: string, { path, text }: SourceFile): Site[] => {
    const isExported = new RegExp(`^export function ${name}\\b`, "m").test(text);
    const importsIt = new RegExp(`import[^;]*\\b${name}\\b[^;]*/${path.split("/").at(-1)}"`);
    return files
      .filter(({ file }) => file.path === path || (isExported && importsIt.test(file.text)))
      .flatMap(({ calls }) => calls.get(name) ?? []);
  };
  return sites.flatMap((site) => expand(site, callsOf));
}

/** The errors of a place. In a wrapper such as `invalid(message, hint)`, each of its calls is a place. */
function expand(site: Site, callsOf: (name: string, file: SourceFile) => Site[]): MadeError[] {
  const wrapper = site.around.findLast(({ parameters }) => site.parts.some((part) => parameters.includes(identifier(part))));
  if (wrapper === undefined) {
    const [codes = [], messages = [], hints = []] = site.parts.map((part) => textsOf(part, site));
    // A code that is not written here belongs to an error that is passed on.
    const written = codes.filter((code) => CODE.test(code));
    return written.flatMap((code) => messages.flatMap((message) => hints.map((hint) => ({ code, message, hint }))));
  }
  return callsOf(wrapper.name, site.file)
    .filter(({ around }) => !around.some(({ node }) => node === wrapper.node))
    .flatMap((call) => {
      const parts = site.parts.map((part): Part => {
        const position = wrapper.parameters.indexOf(identifier(part));
        return position === -1 ? textsOf(part, site) : (call.parts[position] ?? [OPEN]);
      });
      return expand({ ...call, parts }, callsOf);
    });
}

function identifier(part: Part): string {
  return isTexts(part) || part.type !== "Identifier" ? "" : (part["name"] as string);
}

function isTexts(part: Part): part is readonly string[] {
  return Array.isArray(part);
}

/** Places below a node that make an error: `new HoldfastError(…)`, `super(…)` of a subclass, `["CODE", message, hint]`. */
function sitesIn(file: SourceFile, node: unknown, around: FunctionScope[], calls: Map<string, Site[]>, name = ""): Site[] {
  if (typeof node !== "object" || node === null) return [];
  if (Array.isArray(node)) return node.flatMap((one) => sitesIn(file, one, around, calls));
  const { type, id, params, callee, key } = node as Node & Record<string, Node | undefined>;
  if (typeof type !== "string") return [];
  const isFunction = Array.isArray(params) && !type.startsWith("TS");
  const scope = isFunction
    ? [
        ...around,
        { name: (id?.["name"] as string | undefined) ?? name, node: node as Node, parameters: (params as Node[]).map(nameOf) },
      ]
    : around;
  const parts = ((node as Node)["arguments"] ?? (node as Node)["elements"] ?? []) as Node[];
  const site = { file, parts: parts.slice(0, 3), around: scope };
  const makes =
    (type === "NewExpression" && callee?.["name"] === "HoldfastError") ||
    (type === "CallExpression" && callee?.type === "Super" && parts.length >= 3) ||
    (type === "ArrayExpression" && parts.length === 3 && isCode(parts[0]) && !isCode(parts[1]));
  if (type === "CallExpression" && callee?.type === "Identifier") {
    const called = callee["name"] as string;
    calls.set(called, [...(calls.get(called) ?? []), { ...site, parts }]);
  }
  const own =
    type === "VariableDeclarator"
      ? (id?.["name"] as string | undefined)
      : type === "MethodDefinition"
        ? (key?.["name"] as string | undefined)
        : undefined;
  return [...(makes ? [site] : []), ...Object.values(node).flatMap((part) => sitesIn(file, part, scope, calls, own ?? ""))];
}

function isCode(part: Node | null | undefined): boolean {
  return typeof part?.["value"] === "string" && CODE.test(part["value"]);
}

function nameOf(parameter: Node): string {
  const { name } = parameter.type === "AssignmentPattern" ? (parameter["left"] as Node) : parameter;
  // A pattern such as { code }: no identifier has this name.
  return (name as string | undefined) ?? "{}";
}

/** The texts that an expression may be, with `…` for what depends on values. */
function textsOf(node: Part, site: Site): readonly string[] {
  if (isTexts(node)) return node;
  const below = (part: unknown) => textsOf(part as Node, site);
  switch (node.type) {
    case "Literal":
      return [String(node["value"]).replaceAll(/\b(?:ADDRESS|SAID|CODE)\b/g, OPEN)];
    case "TemplateLiteral": {
      const expressions = node["expressions"] as Node[];
      return (node["quasis"] as Node[]).reduce<readonly string[]>(
        (texts, { value }, i) => {
          const next = expressions[i];
          const fillers = next === undefined ? [""] : isConstant(next) ? below(next) : [OPEN];
          return texts.flatMap((text) => fillers.map((filler) => text + (value as { cooked: string }).cooked + filler));
        },
        [""],
      );
    }
    case "BinaryExpression":
      return below(node["left"]).flatMap((left) => below(node["right"]).map((right) => left + right));
    case "ConditionalExpression":
      return [...below(node["consequent"]), ...below(node["alternate"])];
    case "Identifier": {
      const init = constantIn(site, node["name"] as string) ?? defaultIn(site, node["name"] as string);
      return init === undefined ? [OPEN] : below(init);
    }
    default:
      return [OPEN];
  }
}

/** `${ANOTHER}`: a text of the module, not a value. */
function isConstant(node: Node): boolean {
  return node.type === "Identifier" && CODE.test(node["name"] as string);
}

/** The default of a destructured parameter: `{ code = "FILE_MISSING" }`. */
function defaultIn({ around }: Site, name: string): Node | undefined {
  const patterns = around.flatMap(({ node }) => node["params"] as Node[]).filter(({ type }) => type === "ObjectPattern");
  const values = patterns.flatMap((pattern) => pattern["properties"] as Node[]).map(({ value }) => value as Node | undefined);
  return values.find((value) => value?.type === "AssignmentPattern" && (value["left"] as Node)["name"] === name)?.["right"] as
    | Node
    | undefined;
}

/** What a `const` of the innermost function around, or of the module, is made of. */
function constantIn({ file, around }: Site, name: string): Node | undefined {
  const scopes = [...around.map(({ node }) => node["body"] as Node).toReversed(), { body: file.body } as unknown as Node];
  for (const { body } of scopes as unknown as { body: Node[] | undefined }[]) {
    for (const statement of Array.isArray(body) ? body : []) {
      const { declarations } = ((statement["declaration"] as Node | null | undefined) ?? statement) as unknown as {
        declarations?: Node[];
      };
      const found = declarations?.find(({ id }) => (id as Node)["name"] === name);
      if (found !== undefined) return (found["init"] as Node | null) ?? undefined;
    }
  }
  return undefined;
}
