package rdma

// Event is something that happened and should be rare; each is counted.
type Event uint8

// The events.
const (
	EventClamped       Event = iota // a size that the device cannot do was lowered
	EventRegisterFail               // memory was not registered
	EventPairFailed                 // a queue pair of ours went to the state of error
	EventPairRevived                // and got a successor
	EventReadRetried                // a flushed read was read again
	EventWriteReopened              // a flushed write opened its grant again
	EventFenced                     // a revoke destroyed a peer's pairs for writes
	EventDeadline                   // a deadline passed with requests in flight
	EventUnflushed                  // a failed pair did not flush in time and was destroyed with what it held
	EventSilent                     // a link ended since control was not answered
	EventGarbage                    // a control message that makes no sense
	EventTooMany                    // a link of a peer was refused since there were too many
	EventForgotten                  // a link of a peer that asked nothing for too long
	EventGoodbye                    // a link of a peer that its asker ended
	EventDropped                    // a link of a peer that ended with that start of it, or with the transport
	EventControlFailed              // a link of a peer whose control pair failed
	EventUnanswered                 // a link of a peer that was refused since its pairs were not made
	EventReviveRefused              // a link ended since the owner made no successor of a pair
	EventCallFailed                 // a call to the device failed: a link ended by it, or peers' control waits until it is tried again
	EventUndestroyed                // a queue pair was not destroyed: what it may touch is not given back until it is, which is tried again
	NumEvents
)

func (e Event) String() string {
	return [NumEvents]string{"clamped", "register_failed", "pair_failed", "pair_revived", "read_retried", "write_reopened", "fenced", "deadline",
		"unflushed", "silent", "garbage", "too_many", "forgotten", "goodbye", "dropped", "control_failed", "unanswered", "revive_refused",
		"call_failed", "undestroyed"}[e]
}

// NumStatuses is the length of Stats.Completions.
const NumStatuses = numStatuses

// Stats of a transport. Bytes of links by purpose are with the links.
type Stats struct {
	Events      [NumEvents]uint64
	Completions [NumStatuses]uint64 // of ours that are no success, by Status; index 0 counts none
	Registered  uint64              // bytes that are registered now, each registration counted
	Regions     uint64              // registrations with the device, now
	Inbound     int                 // links of peers, now
	Links       int                 // ours, now
}
