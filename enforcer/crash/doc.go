// Package crash keeps what is known of programs under the hook that met a fault: kernels that
// may have been running, the last launches, and the memory that an address was in.
//
// A crash is an XID that names the process of a session, or a fault that the process was told
// and noted in its trace. The recorder takes a snapshot of the trace within 100 ms, and one of
// each trace that ends: an XID may come a moment later. Look makes records of them, once a
// second, and writes each to a file of its own.
//
// All but the XID, the process and its owner is what the process says of itself: whoever writes
// over his trace spoils his own record. Everything is bounded: the part of a trace that is read,
// a record, their number, and how many are written at each Look.
package crash
