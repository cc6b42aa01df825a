// The build replaces this module: published thread code is a text inside the library, which bundlers keep.
export const THREAD_CODE: string | null = null;
export const IS_THREAD_CODE: boolean = false;
