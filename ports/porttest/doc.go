// Package porttest is the contract of each port as tests: every adapter and every fake runs the suite of the ports that it
// implements. A promise that a consumer relies on has a case here, or it is none. Where a port is about speed, its suite has
// a benchmark half.
package porttest
