import { styleText } from "node:util";

export type Style = Parameters<typeof styleText>[0];

/** Coloured where the stream shows colours: NO_COLOR, FORCE_COLOR and pipes are heeded. */
export function paint(style: Style | null, text: string, stream: NodeJS.WriteStream = process.stdout): string {
  return style === null ? text : styleText(style, text, { stream });
}
