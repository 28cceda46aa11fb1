// Package sim simulates an NVIDIA GPU host behind go-nvml's nvml.Interface:
// GPUs with loads, processes, consistent physics and counters, and faults on a
// timeline.
//
// Simulated time is the real time since New, multiplied by Options.Speed. Each
// GPU advances in steps of 100 ms of simulated time when it is read, so an
// unread host costs nothing. Events depend only on the seed, the scenario, the
// GPU's index and the number of the step, never on the order of the reads. With
// Speed 1 and testing/synctest a test controls the clock.
package sim
