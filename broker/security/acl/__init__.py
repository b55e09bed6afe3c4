"""Access control: who may do what, by the rules of an ACL file, and the quotas of users."""
