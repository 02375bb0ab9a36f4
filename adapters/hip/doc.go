// Package hip is the Medium over a GPU's memory and the Copier between host and device memory. The vendor's runtime (libamdhip64, or
// libcudart, whose calls correspond) is opened at run time; a build without the tag gpu refuses with errors.ErrUnsupported.
//
// Each device has a small fixed set of goroutines that are locked to their threads, since the device that is set and the last error
// belong to a thread. A batch of copies goes to one of them as a job. It carries it out in rounds: host memory is gathered into a pinned
// bounce buffer, one submission moves everything that the round holds, and what came from the device is dealt out. Copies that are
// neighbours become one, equal strides become one copy of rows, and the rest is one batched call where the runtime has it.
//
// The device never touches a caller's host memory: it reads and writes the bounce buffer, which belongs to the thread. So when a device
// hangs, which shows at a deadline, the caller's host memory is quiet at once, and the bounce buffer stays borrowed for ever. Rejected:
// copies straight to and from pinned memory of callers. They save one copy by the CPU, and leave no way to return from a device that
// does not answer.
//
// A job is queued, then alternately touching (the thread reads or writes the caller's columns and memory) and away (only the driver
// is at work, on the bounce buffer), and ends. Who waits for it gives it up only when it is queued or away, by a compare-and-swap that
// the thread has to win before it touches anything again. The device is lost from then on: every later copy on it fails at once.
//
// Lock order: Runtime.mu, device.mu. Neither is held across a call of the library.
package hip
