import type { ContextParts } from "./context-hash.ts";
import { type Difference, difference } from "./difference.ts";
import { hideSecrets } from "./key.ts";

/** Why a stage was run for a target, or was not. */
export interface Why {
  ran: boolean;
  reason: string;
  parts: Difference[];
}

export interface WhyFacts {
  ran: boolean;
  /** What its last result was made of; null: there is none. */
  before: ContextParts | null;
  after: ContextParts;
  /** Of a gather: which members came, went, or are others, where that is known. */
  members?: readonly Difference[];
  /** Somebody asked for it with `rerun`. */
  forced?: boolean;
  /** The last time it failed. */
  failedBefore?: boolean;
  /** The function's text is not what it was, and the version is. */
  edited?: boolean;
}

export function why({ ran, before, after, members = [], forced, failedBefore, edited }: WhyFacts): Why {
  const changed = before === null ? [] : changedParts(before, after);
  // A hash over all of them says no more than that.
  const parts = members.length === 0 ? changed : [...changed.filter(({ part }) => part !== "target.hash"), ...members];
  const warning = edited === true ? " Its code was edited, and its version was not raised." : "";
  return { ran, reason: say() + warning, parts };

  function say(): string {
    if (!ran) return "Reused: version, key, input and target are unchanged.";
    if (forced === true) return "Ran: the build was started with `rerun` for this stage.";
    if (failedBefore === true && parts.length === 0) return "Ran: the last attempt failed.";
    if (before === null) return "Ran: this target had no result before.";
    if (parts.length === 0) return "Ran: the result before was deleted.";
    return `Ran: ${list(parts.map(({ part }) => part))} changed.`;
  }
}

/** Which parts differ, from what to what; a key in its innermost parts. */
export function changedParts(before: ContextParts, after: ContextParts): Difference[] {
  return difference(shown(before), shown(after), "").map(({ part, before, after }) => ({
    part: part.slice(1),
    before,
    after,
  }));
}

function shown({ stage, version, key, input, uses, target, reuse }: ContextParts): object {
  return {
    stage,
    version,
    ...(key === null ? {} : { key: hideSecrets(JSON.parse(key)) }),
    input,
    uses,
    target: reuse === "bytes" ? { hash: target.hash } : { id: target.id, hash: target.hash },
    reuse,
  };
}

function list(parts: string[]): string {
  return parts.length > 5 ? `${parts.slice(0, 5).join(", ")} and ${parts.length - 5} more` : parts.join(", ");
}
