/*
 * The build replaces this module. In the published package the code of Holdfast's threads is a text inside the library, which a
 * bundler keeps wherever it puts the library; in a checkout the threads run their own files.
 */
export const THREAD_CODE: string | null = null;
/** Whether this very module is part of that text. */
export const IS_THREAD_CODE: boolean = false;
