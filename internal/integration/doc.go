// Package integration holds the tests of the whole: of the program as it is
// started, of what is shipped beside it, and of what the documents say. They
// run at the root of the repository.
package integration
