// Package integration holds the tests of the whole: the program as it is
// started, the files that are shipped beside it, and the documents. They run at
// the root of the repository.
package integration
