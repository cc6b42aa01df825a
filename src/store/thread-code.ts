/*
 * The build replaces this module. In the published package, thread code is a text inside the library, which bundlers keep; in a
 * checkout, threads run their own files.
 */
export const THREAD_CODE: string | null = null;
export const IS_THREAD_CODE: boolean = false;
