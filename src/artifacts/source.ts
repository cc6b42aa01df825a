import { createReadStream } from "node:fs";
import { Readable } from "node:stream";
import { HoldfastError } from "../core/errors.ts";
import { faultOf } from "./faults.ts";

/** What can be stored: bytes, text (as UTF-8), a stream of either, or the content of a file. */
export type ArtifactData = Uint8Array | string | Readable | { path: string };

/** The bytes of what lies in memory already; null for what has to be read. */
export function bytesOf(data: ArtifactData): Uint8Array | null {
  if (typeof data === "string") return encode(data);
  return data instanceof Uint8Array ? data : null;
}

/** Piece by piece; whatever goes wrong with the source is thrown as it is. */
export async function* piecesOf(data: ArtifactData): AsyncGenerator<Uint8Array> {
  const bytes = bytesOf(data);
  if (bytes !== null) return yield bytes;
  const stream = streamOf(data as Exclude<ArtifactData, Uint8Array | string>);
  try {
    for await (const piece of stream as AsyncIterable<unknown>) {
      if (typeof piece !== "string" && !(piece instanceof Uint8Array)) {
        throw invalid(`The stream gave ${piece === null ? "null" : typeof piece}, which is neither bytes nor text`);
      }
      yield bytesOf(piece) as Uint8Array;
    }
  } catch (error) {
    throw stream === data ? error : unreadable((data as { path: string }).path, error);
  }
}

/**
 * Refuses what cannot be stored. A stream is listened to from now on: it may fail before anybody comes to read it, and an
 * error that nobody listens to ends the process.
 */
export function accept(data: ArtifactData): void {
  if (typeof data === "string" || data instanceof Uint8Array) return;
  if (data instanceof Readable) {
    data.on("error", () => {});
    return refuseOver(data);
  }
  if (typeof (data as { path?: unknown } | null)?.path !== "string") throw invalid("This is nothing that can be stored");
}

function streamOf(data: Readable | { path: string }): Readable {
  if (!(data instanceof Readable)) return createReadStream(data.path);
  refuseOver(data);
  return data;
}

/** One that is over would give no bytes and no error: an empty artifact that nobody meant. */
function refuseOver(stream: Readable): void {
  if (stream.errored) throw stream.errored;
  if (!stream.readable) throw invalid("The stream is over already, or was destroyed", "Give a stream that nobody else reads.");
}

function encode(text: string): Uint8Array {
  if (text.isWellFormed()) return Buffer.from(text, "utf8");
  throw invalid("The text has half a character (a lone surrogate), which UTF-8 cannot say", "Give bytes instead.");
}

function invalid(what: string, hint = "Give bytes, text, a stream of them, or { path }."): HoldfastError {
  return new HoldfastError("ARTIFACT_INVALID", `${what}, so nothing was stored.`, hint);
}

function unreadable(path: string, error: unknown): unknown {
  if (error instanceof HoldfastError || faultOf(error) === null) return error;
  return new HoldfastError(
    "ARTIFACT_SOURCE_UNREADABLE",
    `${path} could not be read (${(error as Error).message}), so nothing was stored.`,
    "Check that it is a file, that it is there, and that you may read it.",
    { cause: error },
  );
}
