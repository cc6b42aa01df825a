import { resolve } from "node:path";
import { isDeepStrictEqual } from "node:util";
import type { Clock } from "../../core/text/duration.ts";
import { HoldfastError } from "../../core/text/errors.ts";
import { checkName, checkOneOf, describeValue, refuseUnknown } from "../../core/text/options.ts";
import { fileSink } from "./file.ts";
import { consoleSink, type Sink } from "./sink.ts";
import { webhookSink } from "./webhook.ts";

/** Where events go, as `open` is told. */
export type SinkOptions =
  /** One JSON line an event on standard output. */
  | { type: "console" }
  /** One JSON line an event at the end of this file. */
  | { type: "file"; path: string }
  /** One POST an event, signed with the secret (`whsec_` and base64) as Standard Webhooks say. */
  | { type: "webhook"; url: string; secret: string };

/** As they were found to be good. */
type Checked = { type: "console" } | { type: "file"; path: string } | { type: "webhook"; url: URL; secret: Buffer };

export interface SinkSettings {
  readonly type: SinkOptions["type"];
  /** `mode`: of a file that it creates. */
  make(clock: Clock, mode: number): Sink;
  isSame(other: SinkSettings): boolean;
}

/** Says at `open` what is wrong with them; whether the other side is there shows when something is delivered. */
export function checkSinks(sinks: Record<string, SinkOptions> | undefined): Map<string, SinkSettings> {
  if (sinks === undefined) return new Map();
  if (typeof sinks !== "object" || sinks === null || Array.isArray(sinks)) {
    throw invalid(
      `\`sinks\` must be an object, got ${describeValue(sinks)}.`,
      'Give an object of names, e.g. { audit: { type: "file", path: "events.jsonl" } }.',
    );
  }
  return new Map(
    Object.entries(sinks).map(([name, options]) => [checkName(name, "A sink's name"), new Settings(check(name, options))]),
  );
}

class Settings implements SinkSettings {
  readonly #checked: Checked;

  constructor(checked: Checked) {
    this.#checked = checked;
  }

  get type(): SinkOptions["type"] {
    return this.#checked.type;
  }

  make(clock: Clock, mode: number): Sink {
    switch (this.#checked.type) {
      case "console":
        return consoleSink();
      case "file":
        return fileSink(this.#checked.path, mode);
      case "webhook":
        return webhookSink(this.#checked, clock);
    }
  }

  isSame(other: SinkSettings): boolean {
    return other instanceof Settings && isDeepStrictEqual(this.#checked, other.#checked);
  }
}

const KNOWN = { console: ["type"], file: ["type", "path"], webhook: ["type", "url", "secret"] } as const;

function check(name: string, options: SinkOptions): Checked {
  const where = `sink "${name}"`;
  if (typeof options !== "object" || options === null) {
    throw invalid(
      `The ${where} must be an object, got ${describeValue(options)}.`,
      'Give an object with its `type`, e.g. { type: "console" }.',
    );
  }
  checkOneOf(options.type, ["console", "file", "webhook"], `The type of ${where}`);
  refuseUnknown(options, KNOWN[options.type], `A ${options.type} sink`);
  switch (options.type) {
    case "console":
      return { type: "console" };
    case "file":
      return { type: "file", path: checkPath(options.path, where) };
    case "webhook":
      return { type: "webhook", url: checkUrl(options.url, where), secret: checkSecret(options.secret, where) };
  }
}

/** From here on it stays the same file, whatever becomes of the working folder. */
function checkPath(path: unknown, where: string): string {
  if (typeof path === "string" && path !== "" && !path.includes("\0")) return resolve(path);
  throw invalid(`The path of ${where} must be a path, got ${describeValue(path)}.`, 'Give a path, e.g. "events.jsonl".');
}

/** Addresses may hold secrets, so the errors do not repeat them. */
function checkUrl(given: unknown, where: string): URL {
  const url = typeof given === "string" && URL.canParse(given) ? new URL(given) : null;
  if (url === null || (url.protocol !== "http:" && url.protocol !== "https:")) {
    throw invalid(`The url of ${where} is no http or https address.`, 'Give one, e.g. "https://example.com/hooks".');
  }
  if (url.username !== "" || url.password !== "") {
    throw invalid(
      `The url of ${where} has a user name or password in it.`,
      "Leave them out: the other side tells by the signature who calls.",
    );
  }
  return url;
}

/** Standard Webhooks: 24 to 64 random bytes. */
function checkSecret(given: unknown, where: string): Buffer {
  const text = typeof given === "string" ? /^whsec_([A-Za-z0-9+/]+={0,2})$/.exec(given)?.[1] : undefined;
  const secret = Buffer.from(text ?? "", "base64");
  if (secret.length >= 24 && secret.length <= 64) return secret;
  throw invalid(
    `The secret of ${where} is none of Standard Webhooks.`,
    "Give whsec_ and the base64 of 24 to 64 random bytes; `openssl rand -base64 32` makes some.",
  );
}

function invalid(message: string, hint: string): HoldfastError {
  return new HoldfastError("OPTION_INVALID", message, hint);
}
